"""What a rank holds to talk to others, as the engines' source sizes it."""
