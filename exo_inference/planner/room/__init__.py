"""What the memory left for the cache holds, and how it is told where that is too little."""
