"""Jira Cloud: tickets and internal comments through the jira client, found again by label and entity property."""
