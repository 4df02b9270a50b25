"""Serving: a trained policy as a memory behind OpenAI's API and MCP."""
