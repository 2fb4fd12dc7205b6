"""Plans graded against what engines printed when they really started."""
