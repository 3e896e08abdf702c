// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides in which order the members of a round run. Pure.
//!
//! Each run finds the machine as the run before left it: the page cache, the disk's own cache and queue, the CPU's
//! clock and temperature. In a fixed order, the same one of two contenders always pays for that, in every round. So
//! every other round is in reverse order, A B C, C B A: over an even number of rounds, each of two contenders runs
//! before the other equally often, and both still run in every round, so that rounds can be compared.
//!
//! A run that consists of two measurements, such as with Aquifer and without, follows the same rule. A round of two
//! builds is then reversed as a whole.

/// One turn of a build on a case of an overhead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub round: u32,
    /// Its place in the round, from 0.
    pub turn: u32,
    /// True for the build of `--against`.
    pub is_other_build: bool,
}

fn is_reversed(round: u32) -> bool {
    !round.is_multiple_of(2)
}

/// The members of a round in the order in which they run.
pub fn of_round<T>(round: u32, mut members: Vec<T>) -> Vec<T> {
    if is_reversed(round) {
        members.reverse();
    }
    members
}

/// The turns of this build, and of the other one if there is one.
pub fn of_builds(rounds: u32, is_against: bool) -> Vec<Turn> {
    let builds = if is_against { &[false, true][..] } else { &[false] };
    let turns = |round| {
        let in_order = (0..).zip(of_round(round, builds.to_vec()));
        in_order.map(move |(turn, is_other_build)| Turn { round, turn, is_other_build })
    };
    (0..rounds).flat_map(turns).collect()
}

/// Makes two measurements, in the order of the round. Stops at the first failure.
pub fn both<A, B, E>(
    round: u32,
    first: impl FnOnce() -> Result<A, E>,
    second: impl FnOnce() -> Result<B, E>,
) -> Result<(A, B), E> {
    if is_reversed(round) {
        let second = second()?;
        return Ok((first()?, second));
    }
    Ok((first()?, second()?))
}

/// A warning for a comparison of two builds in which one build comes first one more time than the other.
///
/// The order can have more effect than the difference between the builds. If two of three rounds have the same order,
/// the median is a figure of that order.
pub fn warning(rounds: u32, is_against: bool) -> Option<String> {
    (is_against && !rounds.is_multiple_of(2)).then(|| {
        format!(
            "--rounds {rounds} is odd: one build comes first once more than the other, so their ratio contains the \
             effect of the order; use --rounds {}",
            rounds + 1
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// The number of rounds in which `one` runs before `other`.
    fn firsts<T: PartialEq>(rounds: &[Vec<T>], one: &T, other: &T) -> usize {
        let place = |round: &[T], member| round.iter().position(|it| it == member).expect("it runs in each round");
        rounds.iter().filter(|round| place(round, one) < place(round, other)).count()
    }

    #[test]
    fn over_an_even_number_of_rounds_each_of_two_comes_first_equally_often() {
        for members in [2, 3, 4, 7] {
            let listed: Vec<u32> = (0..members).collect();
            for rounds in [2, 4, 16] {
                let all: Vec<_> = (0..rounds).map(|round| of_round(round, listed.clone())).collect();
                for (one, other) in listed.iter().flat_map(|one| listed.iter().map(move |other| (one, other))) {
                    if one != other {
                        assert_eq!(firsts(&all, one, other) * 2, rounds as usize, "{one} before {other}");
                    }
                }
            }
        }
    }

    #[test]
    fn each_member_has_one_turn_in_each_round() {
        for round in 0..5 {
            let mut members = of_round(round, vec!["a", "b", "c"]);
            members.sort_unstable();
            assert_eq!(members, ["a", "b", "c"]);
        }
    }

    #[test]
    fn the_first_round_is_in_the_order_of_the_request() {
        assert_eq!(of_round(0, vec!["a", "b", "c"]), ["a", "b", "c"]);
        assert_eq!(of_round(1, vec!["a", "b", "c"]), ["c", "b", "a"]);
    }

    #[test]
    fn builds_alternate_within_their_rounds() {
        let order = |rounds, is_against| -> Vec<_> {
            let turns = of_builds(rounds, is_against).into_iter();
            turns.map(|Turn { round, turn, is_other_build }| (round, turn, is_other_build)).collect()
        };
        let (ours, other) = (false, true);
        assert_eq!(order(2, true), [(0, 0, ours), (0, 1, other), (1, 0, other), (1, 1, ours)]);
        assert_eq!(order(3, false), [(0, 0, ours), (1, 0, ours), (2, 0, ours)]);
        let turns = of_builds(16, true);
        assert_eq!(turns.iter().filter(|turn| turn.turn == 0 && turn.is_other_build).count(), 8);
    }

    #[test]
    fn two_measurements_of_one_run_alternate_and_keep_their_names() {
        let made = RefCell::new(String::new());
        let measure = |name: char| {
            made.borrow_mut().push(name);
            Ok::<char, ()>(name)
        };
        for round in 0..4 {
            assert_eq!(both(round, || measure('a'), || measure('b')), Ok(('a', 'b')));
        }
        assert_eq!(*made.borrow(), "abbaabba");
    }

    #[test]
    fn after_a_failure_nothing_else_is_measured() {
        let must_not_run = || -> Result<(), &str> { panic!("the other one has failed") };
        assert_eq!(both(0, || Err::<(), _>("the first"), must_not_run), Err("the first"));
        assert_eq!(both(1, must_not_run, || Err::<(), _>("the second")), Err("the second"));
    }

    #[test]
    fn an_odd_number_of_rounds_is_reported_where_it_decides() {
        assert!(warning(3, true).unwrap().ends_with("use --rounds 4"));
        assert_eq!(warning(4, true), None);
        assert_eq!(warning(3, false), None);
    }
}
