"""Emulation of another card on this device."""
