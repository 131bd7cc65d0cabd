/**
 * The broker's REST API. Every address comes from the server settings, so that any `base_url`,
 * proxy or hub prefix holds; every failure is an `ApiError` with what to do next.
 */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { DeviceState, ErrorReply, HealthReport, History, Job, StoryEntry } from './records';

const API_PATH = 'horus/api/v1';

/** Why a request failed. `status` is 0 where no server answered. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string
  ) {
    super(message);
  }
}

/** What the store asks of the broker. */
export interface BrokerApi {
  health(): Promise<HealthReport>;
  devices(): Promise<readonly DeviceState[]>;
  jobs(): Promise<readonly Job[]>;
  story(jobId: string): Promise<readonly StoryEntry[]>;
  history(limit: number): Promise<History>;
  cancel(jobId: string): Promise<Job>;
  /** The event stream's address, resuming after this sequence number. */
  eventsUrl(after: number | null): string;
}

/** The API of the server that JupyterLab itself talks to. */
export class ServerApi implements BrokerApi {
  constructor(private readonly settings: ServerConnection.ISettings) {}

  health(): Promise<HealthReport> {
    return this.request<HealthReport>('health');
  }

  devices(): Promise<readonly DeviceState[]> {
    return this.request<readonly DeviceState[]>('devices');
  }

  jobs(): Promise<readonly Job[]> {
    return this.request<readonly Job[]>('jobs');
  }

  story(jobId: string): Promise<readonly StoryEntry[]> {
    return this.request<readonly StoryEntry[]>(`jobs/${encodeURIComponent(jobId)}/story`);
  }

  history(limit: number): Promise<History> {
    return this.request<History>(`history?limit=${limit}`);
  }

  cancel(jobId: string): Promise<Job> {
    return this.request<Job>(`jobs/${encodeURIComponent(jobId)}`, 'DELETE');
  }

  eventsUrl(after: number | null): string {
    const query: Record<string, string> = {};
    if (after !== null) {
      query['after'] = String(after);
    }
    if (this.settings.appendToken && this.settings.token !== '') {
      query['token'] = this.settings.token;
    }
    return URLExt.join(this.settings.wsUrl, API_PATH, 'events') + URLExt.objectToQueryString(query);
  }

  private async request<T>(path: string, method = 'GET'): Promise<T> {
    const url = URLExt.join(this.settings.baseUrl, API_PATH) + `/${path}`;
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(url, { method }, this.settings);
    } catch {
      throw new ApiError(
        0,
        'no_answer',
        'The Jupyter server does not answer.',
        'It is tried again by itself; check that the server still runs.'
      );
    }
    const text = await response.text();
    let body: unknown = null;
    try {
      body = JSON.parse(text);
    } catch {
      // Not JSON: a proxy's page, or a server without the extension.
    }
    if (response.ok && body !== null) {
      return body as T;
    }
    throw refusal(response.status, body);
  }
}

function refusal(status: number, body: unknown): ApiError {
  if (isErrorReply(body)) {
    return new ApiError(status, body.code, body.message, body.hint);
  }
  if (status === 404) {
    return new ApiError(
      status,
      'not_enabled',
      'This Jupyter server has no Horus Lab broker.',
      'Run “jupyter server extension enable jupyter_ext” in the server’s environment and restart the server.'
    );
  }
  if (status === 401 || status === 403) {
    return new ApiError(
      status,
      'forbidden',
      'The Jupyter server does not let this page use Horus Lab.',
      'Log in again, or ask whoever runs the server for access.'
    );
  }
  return new ApiError(
    status,
    'bad_answer',
    `The Jupyter server answered with status ${status}, and not as Horus Lab does.`,
    'A proxy may stand in between; the server’s log has the details.'
  );
}

function isErrorReply(body: unknown): body is ErrorReply {
  return (
    typeof body === 'object' &&
    body !== null &&
    typeof (body as ErrorReply).code === 'string' &&
    typeof (body as ErrorReply).message === 'string'
  );
}
