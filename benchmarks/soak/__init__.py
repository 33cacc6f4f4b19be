"""Long runs that try to bring a real server down: each part says what must hold, and what it found."""
