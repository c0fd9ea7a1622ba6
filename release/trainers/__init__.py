"""Training a student on the release: the reward and the trainers."""
