"""Eval runs in process: config, dataset, chat-completions endpoint, resume and report."""
