"""Serving: a trained policy as a memory behind the API that clients already speak."""
