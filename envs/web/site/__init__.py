"""A synthetic site: seeded worlds of linked pages, and an expert that browses them."""
