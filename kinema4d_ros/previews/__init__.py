"""What one plan would do, and whether it may be executed: checks, the preview itself, report, gate, playback."""
