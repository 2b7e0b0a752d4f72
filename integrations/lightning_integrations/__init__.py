"""Integrations of lightning_sdk: each a plugin like any other."""
