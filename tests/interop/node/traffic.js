// Produces to topics and consumes from them until it is told to stop, through whatever happens to their brokers.
// tests/interop/moving_cluster.py starts it and tells what its lines mean.
'use strict';

const Pulsar = require('pulsar-client');

const PATIENCE_MS = 120000;
const PAUSE_MS = 20;
const RECEIVE_MS = 100;

const say = (...words) => process.stdout.write(`${words.join(' ')}\n`);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

let stopping = false;

/** Sends 0, 1, 2, ... and returns how many, all of them acknowledged. */
async function produce(client, { name, window, batched }) {
  const producer = await client.createProducer({
    topic: name,
    sendTimeoutMs: PATIENCE_MS,
    batchingEnabled: batched,
    batchingMaxPublishDelayMs: 2 * PAUSE_MS,
  });
  const underWay = new Set();
  let number = 0;
  while (!stopping) {
    const mine = number;
    number += 1;
    const receipt = producer.send({ data: Buffer.from(String(mine)) }).then(() => {
      say('acked', name, mine);
      underWay.delete(receipt);
    });
    underWay.add(receipt);
    if (underWay.size >= window) await Promise.race(underWay);
    await pause(PAUSE_MS);
  }
  await Promise.all(underWay);
  await producer.close();
  say('sent', name, number);
  return number;
}

/** Goes on until it has received all that was sent. */
async function consume(consumer, { name }, sent) {
  let next = 0;
  let all = Infinity;
  sent.then((count) => { all = count; });
  while (next < all) {
    let message;
    try {
      message = await consumer.receive(RECEIVE_MS);
    } catch (error) {
      if (/TimeOut/i.test(error.message)) continue; // nothing came
      throw error;
    }
    const number = Number(message.getData().toString());
    say('received', name, number);
    await consumer.acknowledge(message);
    if (number === next) next += 1;
  }
  await consumer.close();
}

async function run(client, topic) {
  const consumer = await client.subscribe({
    topic: topic.name,
    subscription: 'traffic',
    subscriptionType: 'Exclusive',
    subscriptionInitialPosition: 'Earliest',
  });
  const sent = produce(client, topic);
  await Promise.all([sent, consume(consumer, topic, sent)]);
}

async function main() {
  const [url, ...words] = process.argv.slice(2);
  Pulsar.Client.setLogHandler(() => {});
  const client = new Pulsar.Client({ serviceUrl: url, operationTimeoutSeconds: PATIENCE_MS / 1000 });
  process.stdin.once('data', () => { stopping = true; });
  process.stdin.once('end', () => { stopping = true; });
  await Promise.all(words.map((word) => {
    const [name, window, kind] = word.split(',');
    return run(client, { name, window: Number(window), batched: kind === 'batched' });
  }));
  await client.close();
  say('end');
  process.exit(0);
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
