"""SMS through Twilio: send, schedule, cancel; found again by a short reference at the end of each text."""
