"""A job from what went over the wire: captured packets, their bytes by flow, and the messages and patterns in them."""
