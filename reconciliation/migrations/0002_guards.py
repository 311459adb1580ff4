"""Append-only tables, row-level policies, and the functions by which the sweep finds its work."""

from django.db import migrations

from reconciliation.sql import GUARDS, QUEUE


class Migration(migrations.Migration):
    dependencies = (("reconciliation", "0001_initial"), ("ledger", "0002_guards"))
    operations = (
        migrations.RunSQL(GUARDS, reverse_sql=migrations.RunSQL.noop),
        migrations.RunSQL(QUEUE, reverse_sql=migrations.RunSQL.noop),
    )
