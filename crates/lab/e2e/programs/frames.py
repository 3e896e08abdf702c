# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
# Columns, groups, joins and sorting, on several threads.
import sys

import polars

rows = int(sys.argv[1])
frame = polars.DataFrame({"key": range(rows)}).with_columns(
    group=(polars.col("key") * 7919) % (rows // 100),
    value=(polars.col("key") * 104729) % 1000003,
    text=polars.format("key {}", polars.col("key") % 5003),
)
groups = frame.group_by("group").agg(
    polars.col("value").sum().alias("total"), polars.col("text").n_unique().alias("texts"), polars.len().alias("len")
).sort("group")
joined = frame.join(groups, on="group").sort("value", "key")
assert joined.height == rows and joined["value"].is_sorted() and groups["len"].sum() == rows
print(rows, groups["total"].sum(), groups["texts"].sum(), joined["total"].sum())
print(joined.select(polars.col("text").str.len_chars().sum(), (polars.col("key") % 97 * polars.col("total")).sum()).rows())
