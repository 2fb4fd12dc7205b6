"""Programs of the repository that are no part of what it ships."""
