//! Writes a recording on a thread of its own, so that nobody waits for the disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use lz4_flex::frame::{FrameEncoder, FrameInfo};

use berth_config::RecorderConfig;
use berth_scheduler::recording::Tape;

/// Maximum number of blocks that wait for the disk; with more, the recording ends.
const BLOCKS_MAX: usize = 64;
/// What the names of recordings end with.
const SUFFIX: &str = ".rec.lz4";

/// Takes the blocks of an engine.
pub struct FileTape(SyncSender<Vec<u8>>);

/// The thread that writes them.
pub struct Writing {
    pub file: PathBuf,
    pub bytes: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Tape for FileTape {
    fn write(&mut self, block: Vec<u8>) -> bool {
        self.0.try_send(block).is_ok()
    }
}

impl FileTape {
    /// Begins a recording that starts at this time, in seconds since 1970. Of the earlier ones in its folder, the latest is kept.
    ///
    /// # Errors
    /// The folder or the file cannot be written.
    pub fn begin(config: &RecorderConfig, start_s: i64) -> Result<(FileTape, Writing)> {
        let folder = &config.directory;
        let help = || {
            format!(
                "cannot write recordings to {}: set recorder.directory to a folder that berth may write",
                folder.display()
            )
        };
        fs::create_dir_all(folder).and_then(|()| keep_latest(folder)).with_context(help)?;
        let path = folder.join(format!("berth-{start_s}{SUFFIX}"));
        let file = File::create(&path).with_context(help)?;
        let (sender, blocks) = sync_channel(BLOCKS_MAX);
        let bytes = Arc::new(AtomicU64::new(0));
        let most = u64::from(config.max_mib) << 20;
        let (written, name) = (bytes.clone(), path.clone());
        let body = move || match write_all(file, &blocks, most, &written) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(file = %name.display(), "the recording has ended: it has recorder.maxMiB")
            }
            Err(error) => tracing::warn!(file = %name.display(), %error, "the recording has ended"),
        };
        let thread = std::thread::Builder::new().name("recorder".into()).spawn(body)?;
        Ok((FileTape(sender), Writing { file: path, bytes, thread }))
    }
}

impl Writing {
    /// Waits until everything is written, after the engine has ended the recording.
    pub fn finish(self) {
        // A panic is on standard error already.
        let _ = self.thread.join();
    }
}

/// Returns the start of a recording, in seconds since 1970; `None`: the name is not that of one.
pub(super) fn started(path: &Path) -> Option<i64> {
    path.file_name()?.to_str()?.strip_prefix("berth-")?.strip_suffix(SUFFIX)?.parse().ok()
}

/// Deletes all recordings of a folder but the latest.
fn keep_latest(folder: &Path) -> io::Result<()> {
    let mut known = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        known.extend(started(&path).map(|start| (start, path)));
    }
    known.sort_unstable();
    known.pop();
    known.iter().try_for_each(|(_, path)| fs::remove_file(path))
}

/// Returns whether all blocks were written: `false` if there was no room for one.
fn write_all(mut file: File, blocks: &Receiver<Vec<u8>>, most: u64, written: &AtomicU64) -> io::Result<bool> {
    for block in blocks {
        let frame = frame(&block)?;
        let bytes = written.load(Ordering::Relaxed) + frame.len() as u64;
        if bytes > most {
            return Ok(false);
        }
        file.write_all(&frame)?;
        written.store(bytes, Ordering::Relaxed);
    }
    Ok(true)
}

/// Returns a block as a frame.
pub(super) fn frame(block: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = FrameEncoder::with_frame_info(FrameInfo::new().content_checksum(true), Vec::new());
    encoder.write_all(block)?;
    encoder.finish().map_err(io::Error::other)
}
