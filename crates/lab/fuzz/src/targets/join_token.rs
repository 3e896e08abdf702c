// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Join tokens, as a joining machine reads them from a terminal or a file and a manager from a request.

use aquifer_authority::JoinToken;

use super::one_line;

/// The text of a join token. An accepted text has one token, and that token has one text; a refused text is not
/// repeated in the message, because it may be a secret with a typing error.
pub fn join_token(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match text.parse::<JoinToken>() {
        Ok(token) => {
            let revealed = token.reveal();
            assert_eq!(revealed, text.trim());
            assert_eq!(revealed.parse(), Ok(token.clone()));
            let secret = revealed.split('.').nth(2).expect("four parts");
            let is_elsewhere = secret == token.pin || secret == token.secret_hash();
            assert!(is_elsewhere || !format!("{token:?}").contains(secret), "a secret is printed");
            assert_eq!(token.secret_hash().len(), 64);
        }
        Err(refused) => {
            let line = refused.to_string();
            one_line(&line);
            assert!(text.len() < 80 || !line.contains(&*text), "{line}");
        }
    }
}
