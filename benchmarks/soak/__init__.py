"""Long tests that try to make a real server fail. Each part returns checks: a requirement and whether it was met."""
