%% SPDX-License-Identifier: Apache-2.0
%% Copyright the Aquifer authors
%% Terms in a table, and processes that keep their own and send them to one another.
-module(heap).
-export([main/1]).

value(Key, Turn) -> {Key, Turn, lists:duplicate(20, Key + Turn), integer_to_binary(Key * 7919)}.

worker(Parent, Number, Keys) ->
    Map = lists:foldl(fun(Key, Map) -> Map#{Key => value(Key, Number)} end, #{}, lists:seq(1, Keys)),
    garbage_collect(),
    Wrong = length([Key || {Key, Value} <- maps:to_list(Map), Value =/= value(Key, Number)]),
    Parent ! {Number, Wrong, erlang:phash2(Map, 1 bsl 32), Map}.

main([Text]) ->
    Keys = list_to_integer(atom_to_list(Text)),
    Table = ets:new(table, [public]),
    [ets:insert(Table, value(Key, Turn)) || Turn <- [1, 2, 3], Key <- lists:seq(1, Keys)],
    Parent = self(),
    [spawn(fun() -> worker(Parent, Number, Keys div 4) end) || Number <- lists:seq(1, 4)],
    Found = [receive {Number, Wrong, Hash, Map} -> {Wrong, Hash, maps:size(Map)} end || Number <- lists:seq(1, 4)],
    Lost = length([Key || Key <- lists:seq(1, Keys), ets:lookup(Table, Key) =/= [value(Key, 3)]]),
    Hash = erlang:phash2(lists:sort(ets:tab2list(Table)), 1 bsl 32),
    io:format("~p ~p ~p~n", [Lost, Found, Hash]),
    halt(case {Lost, [Wrong || {Wrong, _, _} <- Found, Wrong > 0]} of {0, []} -> 0; _ -> 3 end).
