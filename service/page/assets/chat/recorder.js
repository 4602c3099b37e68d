// Records from the microphone as a WAV file. The recording goes to the server that sent this page, and nowhere else.

const RATE = 16_000; // samples a second: what models hear
const UNSAFE = "browsers allow one only to pages from HTTPS or from localhost";

/** The bytes of a WAV file with 16 bits a sample, one channel. */
export function wav(parts, rate) {
  const length = parts.reduce((total, part) => total + part.length, 0);
  const view = new DataView(new ArrayBuffer(44 + 2 * length));
  const text = (at, word) => [...word].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // bytes of what follows about the format
  view.setUint16(20, 1, true); // whole numbers
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * length, true);
  let at = 44;
  for (const part of parts) {
    for (const value of part) {
      view.setInt16(at, Math.max(-1, Math.min(1, value)) * 32767, true);
      at += 2;
    }
  }
  return new Blob([view], { type: "audio/wav" });
}

function context() {
  try {
    return new AudioContext({ sampleRate: RATE });
  } catch {
    return new AudioContext(); // the server resamples
  }
}

/** A running recording. `onLevel` gets how loud it is, from 0 to 1, and the bytes of the file, some times a second. */
export class Recorder {
  parts = [];

  /** Throws Error if there is no microphone, or the person or the browser does not allow it. */
  static async start(onLevel) {
    if (!navigator.mediaDevices) throw new Error(UNSAFE);
    const recorder = new Recorder();
    recorder.stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    recorder.context = context();
    try {
      await recorder.context.audioWorklet.addModule(new URL("./recorder-worklet.js", import.meta.url));
    } catch (error) {
      await recorder.stop(); // the microphone would stay on
      throw error;
    }
    const node = new AudioWorkletNode(recorder.context, "recorder", { numberOfOutputs: 0, channelCount: 1 });
    node.port.onmessage = ({ data }) => {
      recorder.parts.push(data);
      onLevel(Math.min(1, Math.max(...data.map(Math.abs))), 2 * data.length * recorder.parts.length);
    };
    recorder.context.createMediaStreamSource(recorder.stream).connect(node);
    return recorder;
  }

  /** End the recording; returns the file. */
  async stop() {
    for (const track of this.stream.getTracks()) track.stop();
    const { sampleRate } = this.context;
    await this.context.close();
    return wav(this.parts, sampleRate);
  }
}
