"""Addition and deletion of experience on any stream: a format for a user's own agent, and three shipped examples."""
