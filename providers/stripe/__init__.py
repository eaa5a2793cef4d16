"""Stripe: charges, holds, captures and refunds through the stripe client, found again by the key in their metadata."""
