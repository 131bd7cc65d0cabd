import { LabIcon } from '@jupyterlab/ui-components';

/** The eye of Horus, in the theme's own colour. */
export const horusIcon = new LabIcon({
  name: 'horus-lab:eye',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="16">
  <path class="jp-icon3" fill="#616161" d="M12 3.2c-3.900 0-7.500 2.100-10.500 6.300 3 4.100 6.600 6.100 10.500 6.100s7.500-2 10.500-6.100C19.500 5.300 15.900 3.200 12 3.200Zm0 1.900c2.900 0 5.600 1.400 8.100 4.400-2.500 2.900-5.200 4.200-8.100 4.200s-5.600-1.300-8.100-4.200C6.400 6.500 9.100 5.100 12 5.100Z"/>
  <circle class="jp-icon3" fill="#616161" cx="12" cy="9.400" r="3.100"/>
  <path class="jp-icon3" fill="#616161" d="m8.300 14.600 1.900.4-.9 5.800-1.900-.3ZM13 15.200l1.800-.5c.9 2.900 2.800 4.300 6 4.300v1.900c-4.100 0-6.700-2-7.800-5.700Z"/>
</svg>`
});
