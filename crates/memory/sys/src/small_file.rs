// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads a file that a person writes, such as a configuration, up to a limit.
//!
//! The limit is on the bytes that are read and not on the length that the kernel reports: a device or a pipe has the
//! length 0, and can deliver bytes for ever.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Reads the whole text of a file that has at most `bytes_max` bytes.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not text in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_the_limit_and_a_device_without_end_is_refused() {
        let path = std::env::temp_dir().join(format!("aquifer-small-file-{}", std::process::id()));
        std::fs::write(&path, "size = 4").unwrap();
        assert_eq!(read_text(&path, 8).unwrap(), "size = 4");
        assert_eq!(read_text(&path, 7).unwrap_err().to_string(), "it has more than 7 bytes");
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text(&path, 8).unwrap_err().to_string(), "it is not text in UTF-8");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_text(&path, 8).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(read_text(Path::new("/dev/zero"), 1 << 20).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
