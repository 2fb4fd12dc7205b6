"""The replicas of a deployment as requests meet them: which one is next, connections to it, its health, and its loss."""
