-- SPDX-License-Identifier: Apache-2.0
-- Copyright the Aquifer authors
set jit = off;
create table t as select i a, md5(i::text) b, (i * 2654435761) % 1000003 c from generate_series(1, ROWS::bigint) i;
analyze t;
select count(*), sum(c), min(b), max(b) from t;
select md5(string_agg(b, ',' order by b)) from t;
select count(*) from (select b, count(*) from t group by b) x;
select sum(x.a) from t x join t y on x.c = y.c and x.a < y.a;
create index by_b on t(b);
update t set c = c + 1 where a % 3 = 0;
select sum(c) from t;
select count(*) from t where b like 'ab%';
