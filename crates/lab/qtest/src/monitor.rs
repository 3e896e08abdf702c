// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! QEMU's monitor, QMP: one JSON object per line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

/// A connection to the monitor.
#[derive(Clone, Debug)]
pub struct Monitor {
    stream: Arc<Mutex<BufReader<UnixStream>>>,
}

impl Monitor {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let monitor = Self { stream: Arc::new(Mutex::new(BufReader::new(stream))) };
        monitor.read(|value| value.get("QMP").map(|_| Ok(Value::Null))).expect("the monitor's greeting");
        monitor.execute("qmp_capabilities", json!({})).expect("the monitor's commands");
        monitor
    }

    /// Carries out a command, and returns what it returns, or the reason why it was refused.
    pub fn execute(&self, command: &str, arguments: Value) -> Result<Value, String> {
        {
            let mut reader = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
            let line = json!({ "execute": command, "arguments": arguments });
            writeln!(reader.get_mut(), "{line}").map_err(|error| format!("QEMU has ended: {error}"))?;
        }
        self.read(|value| match (value.get("return"), value.get("error")) {
            (Some(returned), _) => Some(Ok(returned.clone())),
            (None, Some(error)) => Some(Err(error["desc"].as_str().unwrap_or("no reason").to_owned())),
            // An event.
            (None, None) => None,
        })
    }

    fn read(&self, wanted: impl Fn(&Value) -> Option<Result<Value, String>>) -> Result<Value, String> {
        let mut reader = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(0) => return Err("QEMU has ended".into()),
                Ok(_) => {}
                Err(error) => return Err(format!("the monitor does not answer: {error}")),
            }
            let value: Value = serde_json::from_str(&line).map_err(|error| format!("not JSON: {error}"))?;
            if let Some(ended) = wanted(&value) {
                return ended;
            }
        }
    }
}
