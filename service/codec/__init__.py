"""JSON text to arrays and back, in steps that let other requests go on."""
