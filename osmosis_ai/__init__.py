"""The rollout SDK: workflows, graders, backends and local evaluation."""
