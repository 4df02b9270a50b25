"""Doors to training engines and environment hubs of others: each file is one."""
