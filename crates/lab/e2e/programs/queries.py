# SPDX-License-Identifier: Apache-2.0
# Copyright the Aquifer authors
import sys

import duckdb

rows = int(sys.argv[1])
connection = duckdb.connect()
connection.execute("set threads = 2")
connection.execute(
    f"create table t as select i a, md5(i::varchar) b, (i * 2654435761) % 1000003 c from range({rows}) r(i)"
)
for query in [
    "select count(*), sum(c), min(b), max(b) from t",
    "select c % 1000 g, count(*), sum(a) from t group by g order by g limit 20",
    "select sum(x.a) from t x join t y on x.c = y.c and x.a < y.a",
    "select a, b from (select a, b, row_number() over (order by b) r from t) where r % 100000 = 0 order by r",
    "select count(distinct b) from t",
    "select md5(string_agg(b, ',' order by b)) from t",
]:
    print(connection.execute(query).fetchall())
