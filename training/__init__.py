"""How the models that come with the project are made. Not part of any distribution."""
