//! Ordered queue from the engine to the task that executes its orders.
//!
//! Orders pass through a bounded channel. The engine must not wait for a full channel, and a lost order would
//! leave its pod waiting forever: orders that do not fit are parked, in order, until the receiver has taken
//! earlier ones. Their number is bounded by the engine, which has only some orders per pod outstanding; see
//! where the queues are made.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc::{self, error::TrySendError};

/// Sending half. Never blocks, and never drops an order while the receiver exists.
#[derive(Debug)]
pub(super) struct Outbox<T> {
    channel: mpsc::Sender<T>,
    parked: Arc<Mutex<VecDeque<T>>>,
}

/// Receiving half.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    channel: mpsc::Receiver<T>,
    /// Does not keep the channel open.
    refill: mpsc::WeakSender<T>,
    parked: Arc<Mutex<VecDeque<T>>>,
}

/// Returns a queue whose channel has room for `capacity` orders.
pub(super) fn queue<T>(capacity: usize) -> (Outbox<T>, Inbox<T>) {
    let (sender, receiver) = mpsc::channel(capacity);
    let (refill, parked) = (sender.downgrade(), Arc::default());
    (Outbox { channel: sender, parked: Arc::clone(&parked) }, Inbox { channel: receiver, refill, parked })
}

impl<T> Outbox<T> {
    pub fn send(&self, order: T) {
        let mut parked = self.parked.lock();
        if !parked.is_empty() {
            return parked.push_back(order);
        }
        match self.channel.try_send(order) {
            // The receiver is dropped only when the process ends.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(order)) => {
                tracing::debug!(orders = std::any::type_name::<T>(), "queue is full, orders are parked");
                parked.push_back(order);
            }
        }
    }
}

impl<T> Inbox<T> {
    /// Returns the next order; `None`: the sender is dropped and no order is left. Cancel safe.
    pub async fn recv(&mut self) -> Option<T> {
        let Some(order) = self.channel.recv().await else {
            // Nothing refills the channel once the sender is dropped.
            return self.parked.lock().pop_front();
        };
        // Orders are parked only while the channel is full, and it is refilled whenever one is taken: it is
        // never empty while orders are parked.
        let mut parked = self.parked.lock();
        if !parked.is_empty()
            && let Some(channel) = self.refill.upgrade()
        {
            while let Ok(room) = channel.try_reserve()
                && let Some(order) = parked.pop_front()
            {
                room.send(order);
            }
        }
        Some(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_never_blocks_the_sender_and_keeps_the_order() {
        let (outbox, mut inbox) = queue(2);
        for order in 0..5 {
            outbox.send(order);
        }
        assert_eq!((inbox.channel.len(), inbox.parked.lock().len()), (2, 3));
        assert_eq!(inbox.recv().await, Some(0));
        assert_eq!((inbox.channel.len(), inbox.parked.lock().len()), (2, 2));
        // There is a parked order: a new one must not overtake it.
        outbox.send(5);
        for order in 1..6 {
            assert_eq!(inbox.recv().await, Some(order));
        }
        outbox.send(6);
        assert_eq!(inbox.parked.lock().len(), 0);
        assert_eq!(inbox.recv().await, Some(6));
    }

    #[tokio::test]
    async fn parked_orders_are_received_after_the_sender_is_dropped() {
        let (outbox, mut inbox) = queue(1);
        for order in 0..4 {
            outbox.send(order);
        }
        drop(outbox);
        for order in 0..4 {
            assert_eq!(inbox.recv().await, Some(order));
        }
        assert_eq!(inbox.recv().await, None);
    }

    #[test]
    fn a_slow_receiver_on_another_thread_gets_every_order_in_order() {
        const ORDERS: usize = 20_000;
        let (outbox, mut inbox) = queue(3);
        let sender = std::thread::spawn(move || (0..ORDERS).for_each(|order| outbox.send(order)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            for order in 0..ORDERS {
                assert_eq!(inbox.recv().await, Some(order));
            }
            assert_eq!(inbox.recv().await, None);
        });
        sender.join().expect("no panic");
    }
}
