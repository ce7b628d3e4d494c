"""The store beside foreign frameworks: the Agents SDK and the rollout SDK."""
