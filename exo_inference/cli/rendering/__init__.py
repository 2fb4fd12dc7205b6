"""What a user sees and is asked: tables, templates, colours, progress and prompts."""
