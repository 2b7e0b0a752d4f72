"""What runs inside the agent: decorators, scopes, rewards, recorder, spool and sender."""
