"""What happens in the service: told as events, summed by the minute."""
