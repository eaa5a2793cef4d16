"""Slack: messages posted and scheduled through slack-sdk, found again by metadata, block id and a mark."""
