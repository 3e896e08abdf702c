// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Numbers of things, for people to read.

/// Returns the number and the thing, in the plural unless it is one.
pub(crate) fn counted(number: usize, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_plural() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "host")), ["0 hosts", "1 host", "2 hosts"]);
    }
}
