//! A real browser (Debian's `chromium`, headless) that stays open on a page, driven over its DevTools protocol.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::report::browser::{Screen, isolate};

/// The browser and all its children are killed after this, even if the test hangs.
const TIME_MAX_S: &str = "120";
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A browser with one page. It ends with this value.
pub struct Browser {
    process: Child,
    commands: ChildStdin,
    messages: BufReader<ChildStdout>,
    session: Value,
    last_id: u64,
    /// Errors, warnings and violations of the page's policy.
    pub console: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Opens an empty page with this screen.
    pub fn start(screen: Screen) -> Browser {
        let profile = tempfile::tempdir().expect("a temporary folder");
        // The protocol is spoken over the descriptors 3 and 4.
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=5", TIME_MAX_S, "sh", "-c", "exec chromium \"$@\" 3<&0 4>&1", "chromium"])
            .arg("--remote-debugging-pipe");
        isolate(&mut command, profile.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("`timeout` of coreutils runs");
        let commands = process.stdin.take().expect("a pipe");
        let messages = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut browser = Browser {
            process,
            commands,
            messages,
            session: Value::Null,
            last_id: 0,
            console: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            browser.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].clone();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser.show_on(screen);
        browser
    }

    /// Changes the screen.
    pub fn show_on(&mut self, screen: Screen) {
        let Screen { width, height, dark } = screen;
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
    }

    /// Returns the value of a JavaScript expression.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let answer = self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}));
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until a JavaScript expression is true.
    pub fn await_true(&mut self, expression: &str) {
        let began = Instant::now();
        while self.evaluate(expression) != true {
            assert!(began.elapsed() < ANSWER_MAX, "never: {expression}; console: {:?}", self.console);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses and releases a key.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({"type": kind, "key": key, "code": key}));
        }
    }

    /// Takes a picture of the screen, and returns its size in bytes. `BERTH_SCREENSHOTS=DIR` keeps it there.
    pub fn picture(&mut self, name: &str) -> usize {
        let answer = self.call("Page.captureScreenshot", json!({}));
        let encoded = answer["data"].as_str().expect("a picture");
        if let Some(folder) = std::env::var_os("BERTH_SCREENSHOTS").map(std::path::PathBuf::from) {
            let output =
                Command::new("base64").arg("--decode").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let mut decoder = output.expect("`base64` of coreutils runs");
            let mut input = decoder.stdin.take().expect("a pipe");
            let text = encoded.to_owned();
            let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
            let picture = decoder.wait_with_output().expect("decoded").stdout;
            writer.join().expect("no panic").expect("written");
            std::fs::create_dir_all(&folder).expect("BERTH_SCREENSHOTS is a folder that can be written");
            std::fs::write(folder.join(format!("ui-{name}.png")), picture).expect("the picture is written");
        }
        encoded.len() / 4 * 3
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let mut command = json!({"id": id, "method": method, "params": params});
        if !self.session.is_null() {
            command["sessionId"] = self.session.clone();
        }
        write!(self.commands, "{command}\0").and_then(|()| self.commands.flush()).expect("the browser runs");
        loop {
            let mut message = Vec::new();
            self.messages.read_until(0, &mut message).expect("the browser runs");
            assert_eq!(message.pop(), Some(0), "the browser ended before it answered {method}");
            let message: Value = serde_json::from_slice(&message).expect("JSON");
            match message["method"].as_str() {
                Some("Runtime.exceptionThrown" | "Log.entryAdded") => {
                    self.console.push(message["params"].to_string())
                }
                Some("Runtime.consoleAPICalled") if message["params"]["type"] != "log" => {
                    self.console.push(message["params"].to_string());
                }
                _ => {}
            }
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // `timeout` ends its child.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}
