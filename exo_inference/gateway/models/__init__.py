"""Which model a request asks for, and which replicas have it, while those of one deployment differ."""
