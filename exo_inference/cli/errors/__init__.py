"""What a user sees of errors: as text, as one JSON object, and which of both is printed."""
