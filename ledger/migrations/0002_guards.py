"""Guards, row-level policies and the functions of the hot path."""

from django.db import migrations

from ledger.sql import read


class Migration(migrations.Migration):
    dependencies = (("ledger", "0001_initial"),)
    operations = tuple(
        migrations.RunSQL(read(name), reverse_sql=migrations.RunSQL.noop)
        for name in ("guards", "policies", "facts", "hot")
    )
