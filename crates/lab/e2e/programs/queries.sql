-- SPDX-License-Identifier: Apache-2.0
-- Copyright the Aquifer authors
pragma cache_size = -20000000;
pragma temp_store = memory;
create table t(a integer primary key, b text, c integer);
with recursive n(i) as (select 1 union all select i + 1 from n where i < ROWS)
insert into t select i, hex(i * 7919) || '-' || printf('%060d', (i * 2654435761) % 1000003), (i * 2654435761) % 1000003
from n;
create index by_c on t(c);
select count(*), sum(c), min(b), max(b) from t;
select c % 1000 g, count(*), sum(a) from t group by g order by 3 desc limit 50;
select sum(x.a) from t x join t y on x.c = y.c and x.a < y.a;
update t set b = b || 'x' where c % 3 = 0;
delete from t where c % 7 = 0;
select sum(length(b)) from t;
pragma integrity_check;
