"""Runs an agent over tasks: what to run, where, and what became of each rollout. docs/rollouts.md tells how."""
