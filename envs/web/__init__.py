"""The web environment: a policy that searches and reads pages, and keeps nothing but its memory."""
