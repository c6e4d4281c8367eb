"""Wrong passwords, kept for as long as they count."""

from __future__ import annotations

from django.db import models


class FailedSignIn(models.Model):
    """One refused sign-in. The name is as it was typed, folded to lower case; it need not be a user's."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=150)
    address = models.CharField(max_length=45)
    at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["name", "at"], name="failed_sign_in_name"),
            models.Index(fields=["address", "at"], name="failed_sign_in_address"),
        ]

    def __str__(self) -> str:
        return f"{self.name} from {self.address}"
